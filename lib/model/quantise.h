/*
 * From BF16 (F16, F32) checkpoints to FP8 ones as DeepSeek publishes them, and back.
 *
 * Quantised are the linears: the projections of attention and of every FFN, those of MTP layers too; not embedding,
 * head, norms, router, correction bias and eh_proj.  Per block of 128 x 128, edge blocks what there is of them:
 *   scale = amax / 448 in float32 (ue8m0: the next power of two; where it would be 0: 1), stored as weight_scale_inv
 *   code = e4m3(weight / scale), nearest, ties to even
 * Back: bfloat16(code * scale), nearest, ties to even.  Every other tensor is copied byte for byte.
 */
#ifndef DS_MODEL_QUANTISE_H
#define DS_MODEL_QUANTISE_H

#include <signal.h>

#include "model/model.h"

struct quantise_options {
	const char *from, *out; /* directories */
	bool back;              /* FP8 to BF16 */
	bool ue8m0;
	uint64_t shard;         /* most bytes of tensors a file */
	int threads;            /* 0: one a CPU */
	bool force, dry_run;
	const volatile sig_atomic_t *stop; /* as in make.h */
};

struct quantise_plan {
	size_t tensors, changed, shards; /* written, quantised (or made BF16) among them, files */
	uint64_t before, bytes;          /* of all tensors */
};

/* Reads and writes piece by piece; memory is some megabytes a thread.  Written under a temporary name and renamed when
 * complete.  DS_NOINPUT, DS_DATA (what is FP8 already, a value that is not finite), DS_USAGE, DS_IO, DS_OS. */
int quantise_model(const struct quantise_options *o, struct quantise_plan *plan, struct ds_err *err);

/* ---- parts ---- */

/* Rows [row, row + n) of w, n <= 128 and row a multiple of 128: codes [n, cols] and scales [ceil(cols/128)].  False
 * where a value is not finite. */
bool quantise_band(const struct mat *w, size_t row, size_t n, bool ue8m0, uint8_t *codes, float *scales);
/* The same rows of an FP8 matrix as bfloat16 [n, cols]. */
void dequantise_band(const struct mat *w, size_t row, size_t n, uint16_t *out);

#endif
