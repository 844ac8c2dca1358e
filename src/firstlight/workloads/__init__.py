"""What is measured: a catalogue of workloads and their parameters, and the programs."""
