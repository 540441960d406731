"""The comparisons of ``make bench``: parts that measure, their results, and the pages made from them."""
