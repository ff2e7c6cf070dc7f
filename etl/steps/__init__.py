"""The steps of an ETL run, and what all of its tasks agree on: encode, index, bucket."""
