/*
 * Making checkpoints of random weights, of any shape that config.json describes.  The same seed gives the same bytes,
 * tensor by tensor: a tensor's values depend on the seed, its name and its shape alone.
 */
#ifndef DS_MODEL_MAKE_H
#define DS_MODEL_MAKE_H

#include <signal.h>

#include "base/mem.h"
#include "model/layout.h"

struct make_options {
	const char *like;      /* a config.json or a directory that has one */
	const char *out;       /* directory to make */
	const char *tokenizer; /* directory to copy the tokenizer from, or NULL */
	size_t layers;         /* 0: as in the configuration */
	uint64_t seed;
	enum dtype dtype;      /* DT_BF16, DT_F8_E4M3, DT_F32; DT_NONE: as in the configuration */
	uint64_t shard;        /* most bytes of tensors a file (a single larger tensor still goes into one) */
	bool force, dry_run;
	const volatile sig_atomic_t *stop; /* not 0: give up, clean up, DS_TEMP.  May be NULL */
};

struct make_plan {
	struct config config;
	enum dtype dtype;
	size_t tensors, shards;
	uint64_t bytes;        /* of all tensors */
};

/* Writes under a temporary name beside `out` and renames when complete.  With dry_run only fills in the plan.
 * DS_NOINPUT, DS_DATA, DS_USAGE (out exists and not force), DS_IO, DS_OS. */
int make_model(const struct make_options *o, struct make_plan *plan, struct ds_err *err);

/* ---- parts ---- */

/* The configuration to write, as text, and parsed. */
int make_config(const struct make_options *o, struct buf *text, struct config *c, struct ds_err *err);

/* Values: 4096 of them, mirrored at 0, with the upper half ordered by size. */
struct make_source {
	float unit[2048]; /* positive halves of a standard normal distribution, rising */
};
void make_source_init(struct make_source *s);

enum { MAKE_BAND = 128 }; /* rows made at once: a row of FP8 blocks */

/* Rows [row, row + n) of weight w into out, n <= MAKE_BAND, row a multiple of MAKE_BAND; FP8 also writes the band's
 * scales [ceil(cols/128)].  index: scratch [n * cols]. */
void make_rows(const struct make_source *s, const struct weight *w, uint64_t seed, enum dtype type, bool ue8m0,
	size_t row, size_t n, uint16_t *index, void *out, float *scale);

#endif
