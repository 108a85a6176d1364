"""Recovery points as people use them: restored, inspected, compared, labelled, disposed of."""
