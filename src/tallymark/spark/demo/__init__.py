"""`tallymark demo`: the main job as a play in scenes."""
