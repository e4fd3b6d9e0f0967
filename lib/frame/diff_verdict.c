/* ds-frame diff: the same or not, and why not where nothing could be compared. */
#include <stdio.h>
#include <string.h>

#include "frame/diff.h"

bool diff_point_bad(const struct diff *d, const struct diff_point *p)
{
	return p->over || (!d->o.common && (p->only[0] || p->only[1]));
}

bool diff_request_met(const struct diff_request *r)
{
	return r->tokens[0] && r->tokens[1] && (r->same || r->differs);
}

bool diff_request_bad(const struct diff *d, const struct diff_request *r)
{
	if (!r->tokens[0] || !r->tokens[1])
		return !d->o.common;
	return r->differs || r->over_logprobs || r->other ||
		(!d->o.common && (r->lone_logprobs[0] || r->lone_logprobs[1]));
}

bool diff_frame_bad(const struct diff *d, const struct diff_frame *f)
{
	return !d->o.common || (f->has[0] && f->has[1]);
}

bool diff_compared(const struct diff *d)
{
	for (size_t i = 0; i < d->point_count; i++)
		if (d->points[i].rows)
			return true;
	for (size_t i = 0; i < d->request_count; i++)
		if (diff_request_met(&d->requests[i]))
			return true;
	return d->frames_compared > 0;
}

static bool both_empty(const struct diff *d)
{
	return !d->point_count && !d->request_count && !d->frame_count && !d->frames_compared;
}

bool diff_same(const struct diff *d)
{
	bool bad = !diff_compared(d) && !both_empty(d);

	for (size_t i = 0; i < d->point_count; i++)
		bad |= diff_point_bad(d, &d->points[i]);
	for (size_t i = 0; i < d->request_count; i++)
		bad |= diff_request_bad(d, &d->requests[i]);
	for (size_t i = 0; i < d->frame_count; i++)
		bad |= diff_frame_bad(d, &d->frames[i]);
	return !bad;
}

/* ---- why nothing could be compared ---- */

/* What both captures have, but not of the same requests. */
struct unmatched {
	char what[POINT_NAME_MAX + 32];
	uint64_t stream[2], first[2]; /* the first of each side */
	bool has[2], positions;       /* positions: of the same request, but no row at the same place */
};

static void unmatched_rows(const struct diff *d, size_t point, struct unmatched *u)
{
	for (int s = 0; s < 2; s++)
		for (size_t i = 0; i < d->c[s].row_count && !u->has[s]; i++) {
			const struct cap_rows *r = &d->c[s].rows[i];

			u->has[s] = d->rank[s][r->key] == point;
			u->stream[s] = r->stream;
			u->first[s] = r->first;
		}
	u->positions = u->stream[SIDE_A] == u->stream[SIDE_B];
	point_format(&d->points[point].point, u->what);
}

static void unmatched_tokens(const struct diff *d, struct unmatched *u)
{
	for (size_t i = 0; i < d->request_count && !u->positions; i++) {
		const struct diff_request *r = &d->requests[i];

		u->positions = r->tokens[0] && r->tokens[1];
		for (int s = 0; s < 2; s++)
			if (r->tokens[s] && (!u->has[s] || u->positions)) {
				u->has[s] = true;
				u->stream[s] = r->stream;
				u->first[s] = r->first[s];
			}
	}
	snprintf(u->what, sizeof u->what, "answers");
}

/* Frames are sorted by type. */
static void unmatched_frames(const struct diff *d, struct unmatched *u)
{
	const struct capture *c = d->c;

	for (size_t i = 0, k = 0; i < c[0].frame_count && k < c[1].frame_count;) {
		const struct cap_frame *a = &c[0].frames[i], *b = &c[1].frames[k];

		if (a->type == b->type) {
			*u = (struct unmatched){ .stream = { a->stream, b->stream }, .has = { true, true } };
			snprintf(u->what, sizeof u->what, "%s frames", frame_type_name(a->type));
			return;
		}
		i += a->type < b->type;
		k += a->type > b->type;
	}
}

static bool find_unmatched(const struct diff *d, struct unmatched *u)
{
	memset(u, 0, sizeof *u);
	unmatched_frames(d, u);
	for (size_t i = 0; i < d->point_count && !u->has[0]; i++)
		if (d->points[i].only[0] && d->points[i].only[1])
			unmatched_rows(d, i, u);
	if (!u->has[0])
		unmatched_tokens(d, u);
	return u->has[0] && u->has[1];
}

static void holding(const struct diff *d, int side, char *text, size_t cap)
{
	const struct capture *c = &d->c[side];
	char name[POINT_NAME_MAX + 32];

	if (c->token_count) {
		snprintf(text, cap, "answers");
	} else if (c->frame_count) {
		snprintf(text, cap, "%s frames", frame_type_name(c->frames[0].type));
	} else if (c->keys.n) {
		point_format(&c->keys.v[0], name);
		snprintf(text, cap, "tensors such as %s", name);
	} else {
		snprintf(text, cap, "nothing");
	}
}

void diff_nothing(const struct diff *d, char *why, size_t cap)
{
	const char *a = d->c[SIDE_A].name, *b = d->c[SIDE_B].name;
	char id[2][DIFF_NAME_MAX], holds[2][POINT_NAME_MAX + 60];
	struct unmatched u;

	if (!find_unmatched(d, &u)) {
		holding(d, SIDE_A, holds[SIDE_A], sizeof holds[SIDE_A]);
		holding(d, SIDE_B, holds[SIDE_B], sizeof holds[SIDE_B]);
		snprintf(why, cap, "%s holds %s, %s holds %s", a, holds[SIDE_A], b, holds[SIDE_B]);
	} else if (u.positions) {
		snprintf(why, cap, "both hold %s, but at other positions: from %llu on in %s, from %llu on in %s",
			u.what, (unsigned long long)u.first[SIDE_A], a, (unsigned long long)u.first[SIDE_B], b);
	} else {
		snprintf(why, cap, "both hold %s, but of other requests: %s in %s, %s in %s%s", u.what,
			diff_name(d, u.stream[SIDE_A], id[SIDE_A]), a, diff_name(d, u.stream[SIDE_B], id[SIDE_B]), b,
			strcmp(d->c[SIDE_A].hello.role, "unpack") && strcmp(d->c[SIDE_B].hello.role, "unpack") ? "" :
			"; -r of unpack says whose the tensors are");
	}
}
