/*
 * Speculation with the MTP layer.  A choice keeps the hidden states whose MTP entries are not made yet; its first draft
 * comes from the pass that makes them, further ones from the layer's own hidden state.  A draft is drawn as the token
 * will be, with the random number of its position, so that sampled answers have drafts that are as good as greedy ones.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/decode_impl.h"

void draft_remember(struct decode *d, struct job *j, const float *hidden)
{
	size_t n = d->w->model->config.hidden;

	if (!j->h)
		return;
	memcpy(j->h + j->pending * n, hidden, n * sizeof(*j->h));
	j->next[j->pending++] = j->token;
}

/* The draft that follows feed[k - 1] of j, from the last pass's segment. */
static void take(struct decode *d, struct job *j, size_t k, const struct segment *s)
{
	struct sampled t;

	/* Logits that are not finite give a bad draft; what the model itself says is checked where it counts. */
	if (work_sample(d->w, &j->g->request, j->choice, j->history, s->logits, s->argmax[0], s->lse[0],
		j->position + k, &t))
		j->feed[k] = t.id;
	else
		j->feed[k] = s->argmax[0];
}

/* The first pass: MTP entries for all that is pending. */
static size_t first_pass(struct decode *d, size_t n, struct segment *segs)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];

		if (j->state == JOB_READY && j->rows > 1)
			segs[count++] = (struct segment){ .kv = &j->kv, .tokens = j->next, .h = j->h,
				.rows = j->pending, .stream = j->g->stream + j->choice,
				.name = j->g->request.id, .absorbed = true, .want_logits = 1 };
	}
	return count;
}

/* Takes the k-th drafts and makes the segments of the pass for the next ones, where they are wanted: from the last
 * pass's segments, in the same order, in place. */
static size_t next_pass(struct decode *d, size_t n, size_t k, struct segment *segs)
{
	size_t at = 0, count = 0, hidden = d->w->model->config.hidden;

	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];
		struct segment *s = &segs[at];

		if (j->state != JOB_READY || j->rows <= k)
			continue;
		take(d, j, k, s);
		at++;
		if (j->rows > k + 1)
			segs[count++] = (struct segment){ .kv = &j->kv, .tokens = &j->feed[k],
				.h = s->hidden + (s->rows - 1) * hidden, .rows = 1, .stream = s->stream,
				.name = s->name, .absorbed = true, .want_logits = 1 };
	}
	return count;
}

int draft_catch_up(struct decode *d, size_t n, struct ds_err *err)
{
	struct segment *segs = d->w->mtp_segs;
	size_t count = 0;
	int rc = 0;

	for (size_t i = 0; i <= n && !rc; i++) {
		struct job *j = i < n ? d->stepping[i] : NULL;

		if (count && (!j || (count + 1) * MTP_PENDING > d->w->max_rows)) {
			rc = engine_mtp(d->w->engine, segs, count, err);
			count = 0;
		}
		if (!j || j->state != JOB_READY || j->rows > 1 || !j->h || j->pending < MTP_PENDING)
			continue;
		segs[count++] = (struct segment){ .kv = &j->kv, .tokens = j->next, .h = j->h, .rows = j->pending,
			.stream = j->g->stream + j->choice, .name = j->g->request.id, .absorbed = true };
		j->pending = 0;
	}
	return rc;
}

int draft(struct decode *d, size_t n, struct ds_err *err)
{
	struct segment *segs = d->w->mtp_segs;
	size_t count = first_pass(d, n, segs);
	int rc;

	for (size_t k = 1; count; k++) {
		rc = engine_mtp(d->w->engine, segs, count, err);
		if (rc)
			return rc;
		count = next_pass(d, n, k, segs);
	}
	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];

		if (j->state != JOB_READY || j->rows < 2)
			continue;
		/* Entries made of drafts go again; what was pending is made. */
		j->kv.mtp -= j->rows - 2;
		j->pending = 0;
	}
	return 0;
}
