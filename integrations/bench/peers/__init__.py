"""Other people's drafters under the contract of drafting, for comparison only."""
