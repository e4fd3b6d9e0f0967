/*
 * The meta map of a frame: msgpack-c behind a bounded walk of our own (depth <= 8, at most 1 MiB, no array or map
 * with more elements than bytes left, UTF-8 strings, string keys in maps), read through type-checked getters.
 *
 * Getters: META_OK, META_ABSENT (also for nil) or META_TYPE (there, but of another type or out of range), so that
 * callers tell "not said" from "said wrongly".
 */
#ifndef DS_FRAME_META_H
#define DS_FRAME_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/tensor.h"

enum meta_result { META_OK, META_ABSENT, META_TYPE };

struct meta { const void *obj; };  /* a msgpack map or array, in a reader's zone; NULL: empty */

/* A parsed map that owns its memory (for uses outside frame_reader). */
struct meta_doc;
int meta_parse(struct meta_doc **d, const uint8_t *p, size_t n, struct ds_err *err); /* DS_DATA; p is copied */
struct meta meta_root(const struct meta_doc *d);
void meta_doc_free(struct meta_doc *d);

enum meta_result meta_uint(struct meta m, const char *key, uint64_t *v);
enum meta_result meta_real(struct meta m, const char *key, double *v);  /* floats and integers */
enum meta_result meta_bool(struct meta m, const char *key, bool *v);
enum meta_result meta_str(struct meta m, const char *key, const char **s, size_t *n); /* not NUL-terminated */
enum meta_result meta_bin(struct meta m, const char *key, const uint8_t **p, size_t *n);
/* Copied; too long or with NUL: META_TYPE. */
enum meta_result meta_cstr(struct meta m, const char *key, char *dst, size_t cap);
enum meta_result meta_map(struct meta m, const char *key, struct meta *v);
enum meta_result meta_array(struct meta m, const char *key, struct meta *v, size_t *n);

/* Keys of a map that are not in the list, which NULL ends. */
size_t meta_others(struct meta m, const char *const *known);
/*
 * What two values differ in first: keys of maps are compared by name, numbers by value, what `skip` says of a key in
 * a map at path `in` is left out.  near (may be NULL): says of two reals that differ whether they are close enough.
 * True: they differ; path ("usage.hit", "stop[2]") and both values as JSON text, each cut to its capacity.
 */
struct meta_compare {
	bool (*skip)(const char *in, const char *key, size_t n);
	bool (*near)(void *ctx, const char *path, double a, double b);
	void *ctx;
};
struct meta_difference { char path[200], a[200], b[200]; };
bool meta_differ(struct meta a, struct meta b, const struct meta_compare *how, struct meta_difference *d);

/* Elements of an array. */
enum meta_result meta_at_uint(struct meta a, size_t i, uint64_t *v);
enum meta_result meta_at_real(struct meta a, size_t i, double *v);
enum meta_result meta_at_str(struct meta a, size_t i, const char **s, size_t *n);
enum meta_result meta_at_array(struct meta a, size_t i, struct meta *v, size_t *n);

/* Writes the whole map as a JSON object (key "_" left out, "xxh" and the streams of "rows" in hexadecimal; binary as
 * {"bytes": N}). */
struct jw;
void meta_json(struct jw *w, struct meta m);

/* ---- building ---- */

struct meta_builder;
struct meta_builder *meta_new(void);            /* NULL: no memory */
void meta_free(struct meta_builder *b);
void meta_reset(struct meta_builder *b);        /* empty again, memory kept */
/* Errors (no memory, over 1 MiB) are sticky and reported by frame_write. */
void meta_put_uint(struct meta_builder *b, const char *key, uint64_t v);
void meta_put_real(struct meta_builder *b, const char *key, double v);
void meta_put_bool(struct meta_builder *b, const char *key, bool v);
void meta_put_nil(struct meta_builder *b, const char *key);
void meta_put_str(struct meta_builder *b, const char *key, const char *s, size_t n);
void meta_put_cstr(struct meta_builder *b, const char *key, const char *s);
void meta_put_bin(struct meta_builder *b, const char *key, const void *p, size_t n);
/* Nested values: key is NULL inside an array (also for meta_put_* above); sizes are counted by the builder. */
void meta_put_map(struct meta_builder *b, const char *key);
void meta_put_array(struct meta_builder *b, const char *key);
void meta_put_end(struct meta_builder *b);      /* closes the innermost map or array */
/* Every key of a map but those of a list ended by NULL, as they are. */
void meta_put_rest(struct meta_builder *b, struct meta m, const char *const *but);
/* All that a finished builder holds, behind what is there. */
void meta_put_built(struct meta_builder *b, const struct meta_builder *more);
/* One row of "tensors"; rows must be put one after the other.  dims: axis names, "layer,token,dim". */
void meta_put_tensor(struct meta_builder *b, const char *name, enum dtype type, const char *dims,
	const uint64_t *shape, size_t ndim, uint64_t offset, const char *scale);

#endif
