#!/bin/bash
# Deletes what is left of the slice, if anything is: it would not come back by itself.
gcloud compute tpus queued-resources describe digits-cnn-554ea8b6 --project=change-me --zone=us-central2-b '--format=json(name,createTime,state)' >/dev/null 2>&1 || exit 0
exec gcloud compute tpus queued-resources delete digits-cnn-554ea8b6 --project=change-me --zone=us-central2-b --quiet --force
