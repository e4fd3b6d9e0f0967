/*
 * Writing a checkpoint: a directory of safetensors files with their index, made under a temporary name beside its own
 * and renamed when it is complete.  After a failure nothing is left.
 *
 *   writer_add ... writer_plan | writer_begin, writer_text ..., per shard open, put ..., close | writer_finish
 */
#ifndef DS_MODEL_WRITE_H
#define DS_MODEL_WRITE_H

#include <signal.h>

#include "base/mem.h"
#include "model/safetensors.h"

struct out_tensor {
	char name[ST_MAX_NAME + 16];
	char type[12];        /* as in the header */
	uint64_t shape[ST_MAX_RANK], bytes;
	uint32_t rank, esize; /* esize: bytes an element */
	bool follows;         /* goes into the file of the one before it */
	/* set by writer_plan */
	size_t shard;
	uint64_t offset;      /* in the data of its file */
};

struct writer {
	const char *out;      /* directory to make */
	bool force;           /* replace a model that is there */
	const volatile sig_atomic_t *stop; /* not 0: give up with DS_TEMP.  May be NULL */
	/* the writer's */
	struct out_tensor *tensors;
	size_t count, cap, shards;
	uint64_t bytes;       /* of all tensors */
	char *dir, *tmp;      /* out without slashes at its end; the temporary directory */
};

struct out_file {
	char *path;
	int fd;
	uint64_t data;        /* where the tensors begin */
};

/* A matrix (rows > 0) or a vector (rows 0), of `type`. */
void out_matrix(struct out_tensor *t, const char *name, enum dtype type, size_t rows, size_t cols);
/* weight_scale_inv of an FP8 matrix `of`. */
void out_scale(struct out_tensor *t, const struct out_tensor *of);

/* Keeps a copy.  DS_OS. */
int writer_add(struct writer *w, const struct out_tensor *t, struct ds_err *err);
/* Spreads the tensors over files of at most `shard` bytes of tensors (a larger one has its own), in order; within a
 * file what fills cache lines comes first, then wider types: everything lies at a multiple of its element's size, and
 * tensors whose size is a multiple of 64 bytes at such a multiple. */
void writer_plan(struct writer *w, uint64_t shard);

/* Makes the temporary directory.  DS_USAGE where out exists and may not be replaced, DS_IO, DS_OS. */
int writer_begin(struct writer *w, struct ds_err *err);
int writer_text(const struct writer *w, const char *name, const void *p, size_t n, struct ds_err *err);
/* File s with its header, all of its bytes reserved on the disk. */
int writer_open(const struct writer *w, size_t s, struct out_file *f, struct ds_err *err);
/* Bytes of a tensor of this file from byte `at` of it on.  Several threads may put, each with its own err. */
int writer_put(const struct writer *w, const struct out_file *f, const struct out_tensor *t, uint64_t at, const void *p,
	size_t n, struct ds_err *err);
/* rc; where it is 0, what went wrong with writing to disk or closing. */
int writer_close(struct out_file *f, int rc, struct ds_err *err);
/* The index, where there are several files, and the rename: files are on disk before, the name after.  Where only the
 * last of that fails, out is there all the same. */
int writer_finish(struct writer *w, struct ds_err *err);
/* Also removes what was not finished. */
void writer_free(struct writer *w);

#endif
