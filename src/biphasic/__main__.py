"""`python -m biphasic`: the command line, where its script is not on the path."""

from biphasic.cli.main import main

if __name__ == "__main__":
    main()
