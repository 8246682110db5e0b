"""Files of rules: reading, validation, and conversion into objects."""
