"""Published numbers as data: facts to compare with, each with its source. Nothing here is measured by us."""
