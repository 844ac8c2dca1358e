"""What can be measured: a catalogue of workloads with their sizes, and their programs."""
