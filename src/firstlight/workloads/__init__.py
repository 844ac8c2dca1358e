"""What is measured: a catalogue of names and parameters, and the programs themselves."""
