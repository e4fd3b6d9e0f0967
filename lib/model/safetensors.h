/*
 * One safetensors file, mapped read-only: 8 bytes length (little endian), a JSON header, then the tensors' bytes.
 *
 * The header is outside input: names, types, shapes and offsets are all checked when it is parsed.  The format allows
 * neither overlaps nor holes, and so do we.  Element types that we do not compute with (F64, BOOL, ...) are DT_NONE
 * here, with their size known.
 */
#ifndef DS_MODEL_SAFETENSORS_H
#define DS_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/tensor.h"

enum { ST_MAX_RANK = 8, ST_MAX_HEADER = 100 << 20, ST_MAX_NAME = 256 };

struct st_tensor {
	const char *name;      /* name_len bytes within the header, not NUL-terminated */
	const unsigned char *data;
	uint64_t begin, bytes; /* place within the data area */
	uint64_t shape[ST_MAX_RANK];
	uint32_t name_len, rank;
	enum dtype type;
	char type_name[12];    /* as written */
};

struct st_file {
	char *path;
	void *map;
	size_t size;
	struct mapped *known; /* to the handler of SIGBUS */
	struct st_tensor *tensors; /* in the order of the header */
	size_t count;
};

/* Header text of n bytes, before a data area of data_bytes; tensors is allocated, data is left NULL.  name is for
 * messages. DS_DATA, DS_OS. */
int st_parse(const char *header, size_t n, uint64_t data_bytes, const char *name, struct st_tensor **tensors,
	size_t *count, struct ds_err *err);

/* Where to put a tensor in a file that is to be written, as the format has no holes: all of class 64 first, which fill
 * cache lines, so that each begins with one, then 32 and so on to 1, wider types before narrower ones. */
enum { ST_PLACE_FIRST = 64 };
uint32_t st_place_class(uint64_t bytes, uint32_t elem);

/* Maps and parses; DS_NOINPUT, DS_DATA, DS_OS.  On failure f holds nothing. */
int st_open(struct st_file *f, const char *path, struct ds_err *err);
/* DS_DATA where the file was written to since; accept: only where its size is another (base/mapped.h). */
int st_check(const struct st_file *f, bool accept, struct ds_err *err);
/* What became of work on the file, rc and *err; where the file was written to meanwhile, that instead: it is the cause
 * of whatever was found in it (DS_DATA). */
int st_result(const struct st_file *f, int rc, struct ds_err *err);
void st_close(struct st_file *f);

#endif
