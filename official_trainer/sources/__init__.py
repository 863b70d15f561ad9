"""Sources of examples on the libraries that their users know, one file for each `type` of a data section's `source`.

Owns: reading files, folders, tables and datasets of others by the number of an example, and what is wrong with them.
Does not own: what a source is, the order of examples and pipelines over them (`inputs/`), the form of a section
(`config/components.py`).

Each file imports its library when it is used, and says in `NEEDS` and `INSTALL` what is not installed with this
package.
"""
