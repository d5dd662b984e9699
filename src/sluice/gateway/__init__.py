"""The HTTP edge, tenancy, administration and the command line; where objects are wired."""
