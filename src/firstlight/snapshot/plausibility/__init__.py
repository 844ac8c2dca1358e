"""What a run says that cannot be true, whatever was measured.

    cache_labels      a label that the recorded counts of the cache do not bear out
    single_process    times and counts that one process cannot have
    order_and_clock   processes that cannot have run one after the other, as planned
    whole_run         all of it, and summaries that do not follow from the samples

None of it finds anything in a run that Firstlight measured. A record that was changed with care
passes: times of all processes in proportion, with the clock and the digits put right.
"""
