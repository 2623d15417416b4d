"""Where an instance goes, and why not elsewhere: pure decisions on a fleet that is kept in memory.

`fleet` is the door; `asks` and `answers` are what goes in and comes out; `explaining` puts answers in words.
Nothing here does I/O, looks at a clock or draws lots: the same changes give the same answers.
"""
