"""Jobs as graphs: scheduled, run by workers on this machine, watched. It knows no study."""
