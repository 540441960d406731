"""A draft tree goes in, the tokens that the target model accepts come out."""
