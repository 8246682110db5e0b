"""Memory: cognitive evaluators that learn from conversations, and providers that put it back into prompts.

See docs/memory.md, and docs/design/memory.md for the shape.
"""
