"""The documentation: pages, the programs that write some of them, the settings of the site."""
