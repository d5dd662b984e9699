"""`python -m sluice`."""

from sluice.gateway.cli import main

if __name__ == "__main__":
    main(prog_name="sluice")
