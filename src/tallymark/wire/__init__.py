"""Wire formats: bytes to events and back, one package each. Imports nothing else of ours."""
