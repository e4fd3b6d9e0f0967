/*
 * Points of a model where tensors can be looked at, and the frames of type tensor that hold them.
 *
 * A point is named as users write it: `embed`, `final`, `logits`, and `layer.N.P` for a layer's, where P is one of the
 * names in ds-frame(5).  A tensor frame's rows are named by (stream, position), so that runs which had other batches
 * or chunks can be compared.
 */
#ifndef DS_FRAME_POINT_H
#define DS_FRAME_POINT_H

#include "base/map.h"
#include "frame/frame.h"

enum {
	POINT_NAME_MAX = 160,         /* room for what other tensors are called in comparisons */
	POINT_NAME_BYTES = 100,       /* longest name of a point in a frame */
	POINT_FRAME_BYTES = 64 << 20,
	POINT_FRAME_SEGS = 8192,      /* with names of 64 bytes less than 1 MiB of meta */
};

/* The points that the engine knows, in the order in which a step reaches them, ended by a NULL name. */
struct point_kind { const char *name; bool layered, moe; };
extern const struct point_kind point_kinds[];

struct point {
	char name[POINT_NAME_MAX]; /* "attn_out" */
	bool layered;
	uint64_t layer;            /* 0 where not layered */
};

/* "layer.3.attn_out" into dst. */
void point_format(const struct point *p, char dst[POINT_NAME_MAX + 32]);
/* The opposite.  Any other text of 1 to 100 bytes is a point of no layer; false: too long, empty, or a layer over
 * 2^32. */
bool point_parse(const char *text, size_t n, struct point *p);
/* In the order of a step: of no layer and before them, by layer, after them; unknown ones by name behind known ones. */
int point_compare(const struct point *a, const struct point *b);
/* Each point once, in the order in which they came; i: where p is among them.  DS_OS. */
struct point_set { struct point *v; size_t n, cap; struct map map; };
int point_set_add(struct point_set *s, const struct point *p, size_t *i, struct ds_err *err);
void point_set_free(struct point_set *s);
/* One of a list of shell patterns, separated by commas, matches the name; `layer.3.router` stands for its three. */
bool point_matches(const char *patterns, const struct point *p);
/* Whether the i-th pattern of the list is there; its text and length. */
bool pattern_at(const char *patterns, size_t i, const char **text, size_t *n);

/* ---- tensor frames ---- */

/* Positions first .. first + count of a stream, that of a request's choice. */
struct point_rows {
	uint64_t stream, first, count;
	const char *id;          /* the request's name, [id_len], not NUL-terminated; NULL where it is not known */
	size_t id_len;
};

struct point_frame {
	struct point point;
	bool has_step;
	uint64_t step;
	size_t segs;             /* point_rows_at gives each */
	struct frame_tensor t;   /* [rows, cols], rows the sum of the counts */
	uint64_t rows, cols;
};

/* Whether it is a tensor frame that names its point (others are frames like any other). */
bool point_frame_is(const struct frame *f);
/* Fully checked, DS_DATA: one tensor of two axes, counts that add up, positions below 2^62, names whose hash is the
 * stream of a choice. */
int point_frame_get(const struct frame *f, struct point_frame *p, struct ds_err *err);
struct point_rows point_rows_at(const struct frame *f, size_t i); /* of a checked frame; the name lies in its meta */

/* What is to be written; data [rows, cols], the rows of segs one after the other. */
struct point_data {
	const struct point *point;
	bool has_step;
	uint64_t step;
	enum dtype type;
	const void *data;
	size_t cols;
	uint64_t max_frame;      /* most bytes of a payload, a row at least; 0: 64 MiB */
	const struct point_rows *segs;
	size_t seg_count;
};
/* As one frame, or several where it is larger than POINT_FRAME_BYTES or has more than POINT_FRAME_SEGS segments; with
 * payload hashes.  The stream id is the rows' where they are of one stream, else 0.  more (may be NULL): meta keys of a
 * frame that are kept besides. */
int point_write(struct frame_writer *w, struct meta_builder *b, const struct point_data *d, const struct meta *more,
	struct ds_err *err);

#endif
