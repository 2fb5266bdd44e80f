"""The version of fplab: packaging, the command line and every record read it here."""

__version__ = "0.2.0"
