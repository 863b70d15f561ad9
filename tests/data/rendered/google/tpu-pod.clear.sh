#!/bin/bash
# Deletes what is left of the slice, if anything is: it would not come back by itself.
gcloud compute tpus queued-resources describe digits-1a2b3c4d --project=my-project --zone=us-central2-b '--format=json(name,createTime,state)' >/dev/null 2>&1 || exit 0
exec gcloud compute tpus queued-resources delete digits-1a2b3c4d --project=my-project --zone=us-central2-b --quiet --force
