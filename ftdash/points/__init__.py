"""Recovery points for people: restored, inspected, compared, labelled, disposed of."""
