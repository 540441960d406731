"""The text so far goes in, a draft tree comes out."""
