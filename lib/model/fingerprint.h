/*
 * What tells two models apart.  Both fingerprints are XXH3-128 over the configuration and, in name order, each tensor's
 * name, type, shape and bytes, so that cutting the same weights into other shards changes neither.
 */
#ifndef DS_MODEL_FINGERPRINT_H
#define DS_MODEL_FINGERPRINT_H

#include "model/model.h"

/* Bytes: tensors up to 4 KiB whole, else 128 in the middle.  hex: 33 bytes. */
int fingerprint_quick(const struct model *m, char *hex, struct ds_err *err);

#endif
