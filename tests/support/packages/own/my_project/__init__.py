"""A package of a user's, installed with pip; it knows this project and not the other way round."""
