"""The host: one barrier stage per attempt. The only package that imports pyspark."""
