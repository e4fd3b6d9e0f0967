/* Shared by the files of ds-frame diff. */
#ifndef DS_FRAME_DIFF_H
#define DS_FRAME_DIFF_H

#include "frame/capture.h"
#include "frame/tools.h"

enum { SIDE_A, SIDE_B, DIFF_NAME_MAX = REQUEST_ID_MAX + 30 };

/* How a row of b differs from the same row of a.  Elements that are bit for bit the same, or both NaN, do not. */
struct row_diff {
	bool differs;
	double abs;       /* largest |a - b|; infinite where one is NaN, or one infinite */
	double rel;       /* ||a - b|| / ||a||; infinite where abs is, or a is all zero */
	double cos;       /* of the angle between a and b; 1 where both are zero, NaN where abs is infinite */
	uint64_t col;     /* of the largest, and its values */
	double a, b;
};
void row_compare(enum dtype ta, const void *a, enum dtype tb, const void *b, uint64_t cols, struct row_diff *d);
void row_compare_values(const double *a, const double *b, uint64_t cols, struct row_diff *d); /* [cols] */

struct diff_point {
	struct point point;
	uint64_t rows, only[2], differing, over; /* over: by more than allowed */
	uint64_t other_shape;                    /* rows of another width: they differ, and nothing more is said */
	bool whole;                              /* of integers */
	bool chosen;                             /* ids of experts */
	const struct diff_point *ids;            /* of the experts whose weights these are, or NULL */
	double abs, rel, cos;                    /* the worst of all rows */
	uint64_t stream, position;               /* of the row with the largest rel */
	struct row_diff worst;
};

struct diff_request {
	uint64_t stream, choice, tokens[2];
	uint64_t first[2];                       /* index of the first on each side */
	uint64_t same;                           /* tokens of both before a difference */
	bool differs;                            /* tokens differ: from `index` on */
	uint64_t index;
	uint32_t id[2];
	bool has[2];                             /* there is a token at index */
	double logprob;                          /* largest difference before that */
	uint64_t logprobs, over_logprobs;        /* compared; apart by more than allowed */
	uint64_t lone_logprobs[2];               /* of tokens that have one on that side only */
	uint64_t other;                          /* tokens whose frames differ in other keys */
	struct meta_difference first_other;
};

struct diff_frame {                              /* a frame that differs, or that one side lacks */
	unsigned type;
	uint64_t stream, ordinal;
	bool has[2];
	struct meta_difference d;
};

struct diff {
	struct capture c[2];
	struct diff_options o;
	size_t *rank[2];             /* key of a capture -> point */
	struct diff_point *points;
	size_t point_count;
	struct diff_request *requests;
	size_t request_count, request_cap;
	struct diff_frame *frames;
	size_t frame_count, frame_cap;
	uint64_t frames_compared;
};

/* Chosen experts, [cols] on each side, in any order: ids as sets, and weights by the ids that they belong to, where an
 * expert that only one side has weighs 0 on the other.  Columns are those of the first side that has the expert.
 * DS_OS. */
struct typed_row { enum dtype type; const void *p; };
struct chosen { struct pick *picks[2]; double *values[2]; uint64_t *cols; size_t cap; }; /* room; all 0 at first */
int chosen_ids(struct chosen *c, const struct typed_row ids[2], uint64_t cols, struct row_diff *d, struct ds_err *err);
int chosen_weights(struct chosen *c, const struct typed_row weights[2], const struct typed_row ids[2], uint64_t cols,
	struct row_diff *d, struct ds_err *err);
void chosen_free(struct chosen *c);

void chosen_points(struct diff *d);                            /* tells points which of them are such; once */
/* The ids of n rows of weights from a position on; n becomes smaller where that changes in between.  False: one side
 * has none of the weights' width. */
bool chosen_find(const struct diff *d, const struct diff_point *p, const struct cap_rows *const weights[2],
	uint64_t position, uint64_t *n, const struct cap_rows *ids[2]);

int diff_rows(struct diff *d, struct ds_err *err);             /* the captures are settled */
int diff_tokens(struct diff *d, struct ds_err *err);
int diff_frames(struct diff *d, struct ds_err *err);
bool diff_point_bad(const struct diff *d, const struct diff_point *p);
bool diff_request_met(const struct diff_request *r);           /* some token could be compared */
bool diff_request_bad(const struct diff *d, const struct diff_request *r);
bool diff_frame_bad(const struct diff *d, const struct diff_frame *f);
bool diff_compared(const struct diff *d);                      /* anything at all */
/* False for an empty comparison, too, but of two captures that are empty. */
bool diff_same(const struct diff *d);
/* Where nothing could be compared: why. */
void diff_nothing(const struct diff *d, char *why, size_t cap);
/* The request's name where either capture has it, with the choice but the first, else the stream in hexadecimal. */
const char *diff_name(const struct diff *d, uint64_t stream, char text[DIFF_NAME_MAX]);
/* Prints; DS_IO, DS_OS. */
int diff_print(const struct diff *d, bool json, struct ds_err *err);

#endif
