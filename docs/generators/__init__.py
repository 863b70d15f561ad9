"""Pages that are written from declarations in the code: one module for each kind."""
