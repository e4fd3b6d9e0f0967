/*
 * The tensors of a checkpoint directory by name: one model.safetensors, or model.safetensors.index.json and the shards
 * it names.
 */
#ifndef DS_MODEL_CHECKPOINT_H
#define DS_MODEL_CHECKPOINT_H

#include "model/safetensors.h"

struct ckpt_tensor {
	const struct st_tensor *t; /* NULL: a free slot of the table */
	const struct st_file *file;
	uint64_t hash;
	bool listed;               /* named by the index, or there is none */
	bool used;                 /* part of the model */
};

struct checkpoint {
	struct st_file *files;     /* [file_count] */
	size_t file_count;
	struct ckpt_tensor *table; /* [mask + 1], open addressing */
	size_t mask, count;
	struct ckpt_tensor **order; /* [count], by name (bytewise) */
};

/* DS_NOINPUT, DS_DATA, DS_OS.  On failure c holds nothing. */
int ckpt_open(struct checkpoint *c, const char *dir, struct ds_err *err);
/* st_check of every file. */
int ckpt_check(const struct checkpoint *c, bool accept, struct ds_err *err);
/* st_result of them. */
int ckpt_result(const struct checkpoint *c, int rc, struct ds_err *err);
void ckpt_close(struct checkpoint *c);

/* NULL where the checkpoint has none of that name. */
struct ckpt_tensor *ckpt_find(const struct checkpoint *c, const char *name, size_t n);

#endif
