/*
 * Which frames of a capture are meant: by type, request, point, layer, step, place.
 */
#ifndef DS_FRAME_SELECT_H
#define DS_FRAME_SELECT_H

#include "base/opt.h"
#include "frame/point.h"

enum { RANGES_MAX = 32 };

/* "3", "0..7", "12..", "..3", several separated by commas; both ends belong to a range. */
struct ranges {
	size_t n;          /* 0: everything */
	struct { uint64_t first, last; } v[RANGES_MAX];
};
int ranges_parse(struct ranges *r, const char *option, const char *text, struct ds_err *err); /* NULL text: all */
bool ranges_have(const struct ranges *r, uint64_t x);
bool ranges_meet(const struct ranges *r, uint64_t first, uint64_t count); /* any of first .. first + count */

struct selection_text { /* as given, NULL or empty: everything */
	const char *types, *points, *frames, *layers, *steps, *positions, *indices;
	struct opt_list requests, streams;
};

struct selection {
	uint32_t types;    /* bits; 0: all */
	const char *points;
	uint64_t *streams;  /* sorted, allocated */
	size_t stream_count;
	uint64_t *requests; /* likewise: of named requests, whose choices' streams follow theirs */
	size_t request_count;
	struct ranges frames, layers, steps, positions, indices;
};

int selection_new(struct selection *s, const struct selection_text *t, struct ds_err *err); /* DS_USAGE */
void selection_free(struct selection *s);
bool selection_has_stream(const struct selection *s, uint64_t stream); /* also where none is given */

/* Whether a frame matches: a frame that does not have what is asked for (a layer, positions) does not.  p: of a frame
 * that point_frame_is, already read; else NULL. */
bool selection_has(const struct selection *s, const struct frame *f, const struct point_frame *p);

#endif
