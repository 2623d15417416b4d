"""Where an instance goes, and why not elsewhere: pure decisions on a fleet that is kept in memory.

`scheduler` is the interface; `requests` and `results` are what goes in and comes out; `explanations` puts
results in words.
Nothing here does I/O, looks at a clock or draws lots: the same changes give the same answers.
"""
