"""`python -m unlearnbench` is the command line."""

from unlearnbench.cli import main

main()
