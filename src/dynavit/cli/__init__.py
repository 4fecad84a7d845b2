"""The command line. One module per sub-command: parse, call one library function, print."""
