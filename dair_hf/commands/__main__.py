"""`python -m dair_hf.commands`, the same as `dair-hf`."""

from dair_hf.commands.main import main

main()
