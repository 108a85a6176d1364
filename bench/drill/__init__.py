"""The drill: incidents staged on real pipelines, and read on the pages as a person reads them."""
