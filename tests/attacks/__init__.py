"""What hostile programs did to the package, one theme a file."""
