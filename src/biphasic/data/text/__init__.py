"""Where text comes from: files, the hub, and the documentation of installed libraries."""
