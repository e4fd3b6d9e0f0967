/* A step: drafts, the engine, and what comes of it. */
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "serve/decode_impl.h"
#include "serve/ranked.h"

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Drafts that j has a use for. */
static size_t drafts_for(const struct decode *d, const struct job *j)
{
	size_t most = d->w->model->config.max_positions - (size_t)j->position - 1, n = least(d->o.drafts, most);

	if (j->state != JOB_READY || !j->h || !j->pending)
		return 0;
	if (j->g->request.max_tokens) /* the last token comes without */
		n = least(n, j->g->request.max_tokens - j->index - 1);
	return n;
}

/* Gives the running ones drafts, as far as the budget, also that of the MTP layer's first pass, and free blocks allow.
 * True where any has one. */
static bool add_drafts(struct decode *d, size_t n)
{
	size_t total = 0, running = 0, able = 0, entries = d->w->max_rows, given = 0, each;

	for (size_t i = 0; i < n; i++) {
		total += d->stepping[i]->rows;
		running += d->stepping[i]->state == JOB_READY;
		able += drafts_for(d, d->stepping[i]) > 0;
	}
	if (!able || able * 2 < running || !draft_wanted(&d->policy, running))
		return false;
	each = (d->w->max_rows - total) / able;
	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];
		size_t more = j->pending <= entries ? least(drafts_for(d, j), each) : 0;

		while (more && !kv_seq_reserve(&j->kv, d->w->pool, j->kv.length + 1 + more))
			more--;
		j->rows += more;
		entries -= more ? j->pending : 0;
		given += more;
	}
	return given > 0;
}

static void fill(struct decode *d, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];

		d->prompts[i] = j->state == JOB_PROMPT ? &j->at : NULL;
		j->feed[0] = j->token;
		d->w->segs[i] = d->prompts[i] ? prompt_segment(&j->at, j->rows, j->g->stream, j->g->request.id)
			: (struct segment){ .kv = &j->kv, .tokens = j->feed, .rows = j->rows,
				.stream = j->g->stream + j->choice, .name = j->g->request.id, .absorbed = true,
				.want_logits = j->rows };
	}
}

/* ---- what comes of it ---- */

/* Logits that are not finite come from the weights or from KV that was so already when it came. */
static int not_finite(const struct decode *d, const struct job *j, struct ds_err *err)
{
	const struct group *g = j->g;
	size_t layer, token;

	if (source_hello(g->src)->kv.type == DT_NONE || kv_seq_finite(&j->kv, d->w->pool, g->prompt, &layer, &token))
		return work_not_finite(d->w, &g->request, err);
	return err_set(err, DS_DATA, "request '%s': the KV that '%s' handed over is not finite: layer %zu of token %zu",
		g->request.id, source_name(g->src), layer, token);
}

/* Tokens from the rows of one choice, as long as the drafts were right; returns their number. */
static size_t accept(struct decode *d, struct job *j, const struct segment *s)
{
	const struct config *c = &d->w->model->config;
	size_t base = j->kv.length - j->rows, drafts = j->rows - 1;
	struct group *g = j->g;
	struct ds_err why;

	g->done.mtp.drafted += drafts;
	g->done.mtp.steps += drafts > 0;
	for (size_t r = 0;; r++) {
		struct sampled t;
		bool right;
		int rc = 0;

		j->position++;
		if (!work_sample(d->w, &g->request, j->choice, j->history, s->logits + r * c->vocab, s->argmax[r],
			    s->lse[r], j->position, &t))
			rc = not_finite(d, j, &why);
		else if (j->history)
			rc = sample_history_add(j->history, t.id, &why);
		if (rc) {
			group_fail(d, g, &why);
			return r;
		}
		right = r < drafts && t.id == j->feed[r + 1];
		g->done.mtp.accepted += right;
		d->accepted += right;
		j->kv.length = base + r + 1; /* what wrong drafts left behind it is written over */
		j->token = t.id;
		draft_remember(d, j, s->hidden + r * c->hidden);
		store_made(d, j, t.id);
		if (!emit(d, j, &t) || !right)
			return r + 1;
	}
}

static size_t accept_all(struct decode *d, size_t n, size_t *running)
{
	size_t tokens = 0;

	*running = 0;
	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];

		if (!j || d->prompts[i])
			continue;
		++*running;
		d->drafted += j->rows - 1;
		tokens += accept(d, j, &d->w->segs[i]);
	}
	return tokens;
}

static void start(struct decode *d, struct job *j, const struct prompt *p)
{
	j->g->done.usage = prompt_usage(p);
	group_start(d, j, p->hidden);
}

/* Prompts that are done get their first tokens, and the cache of prefixes and the MTP layer what they need. */
static int finish_prompts(struct decode *d, size_t n, struct ds_err *err)
{
	struct segment *segs = d->w->segs;
	struct ds_err why;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (d->prompts[i] && segs[i].want_logits) {
			struct group *g = d->stepping[i]->g;

			if (prompt_first(d->w, &g->request, d->prompts[i], &segs[i], g->first, &why))
				group_fail(d, g, &why);
		}
	rc = prompt_stepped(d->w, segs, d->prompts, n, err);
	for (size_t i = 0; i < n && !rc; i++)
		if (d->prompts[i] && segs[i].want_logits) {
			rc = store_prompt(d, d->stepping[i], err);
			if (!rc)
				start(d, d->stepping[i], &d->stepping[i]->at);
		}
	return rc;
}

/* A verdict is news once for each class of steps; a service would say it over and over. */
static void time_step(struct decode *d, size_t running, bool drafted, size_t tokens, int64_t ns)
{
	bool again;
	double ratio;

	if (draft_timed(&d->policy, running, drafted, tokens, ns, &ratio, &again))
		log_msg(again ? LOG_INFO : LOG_WARN, "--mtp %zu does not pay with %zu request%s in a step: %.2f times "
			"the speed without; off for the next steps like this", d->o.drafts, running, plural(running),
			ratio);
}

static int step(struct decode *d, bool *busy, struct ds_err *err)
{
	size_t n, running, tokens, prompts = 0;
	int64_t began = time_mono_ns();
	bool drafted;
	int rc;

	store_look(d);
	n = choose(d);
	drafted = d->o.drafts && add_drafts(d, n);
	rc = drafted ? draft(d, n, err) : 0;
	if (!rc && d->o.drafts)
		rc = draft_catch_up(d, n, err);
	*busy = n > 0;
	if (!n || rc)
		return rc;
	fill(d, n);
	for (size_t i = 0; i < n; i++)
		prompts += d->prompts[i] != NULL;
	rc = engine_step(d->w->engine, d->w->segs, n, err);
	if (!rc)
		rc = work_dumped(d->w, err);
	if (rc)
		return rc;
	tokens = accept_all(d, n, &running);
	profile_out(d->w->profile, tokens);
	if (d->o.drafts && running && !prompts)
		time_step(d, running, drafted, tokens, time_mono_ns() - began);
	rc = prompts ? finish_prompts(d, n, err) : 0;
	memset(d->stepping, 0, n * sizeof(*d->stepping));
	return rc;
}

int decode_step(struct decode *d, bool *busy, struct ds_err *err)
{
	int rc = d->lost.code ? 0 : step(d, busy, err);

	if (!rc && !d->lost.code)
		return ranked_step(d->w, busy, err);
	if (!rc)
		*err = d->lost;
	return err->code;
}
