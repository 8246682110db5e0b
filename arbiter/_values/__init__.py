"""Values as data: read-only views of states, copies, and what a value has to look like."""
