#include "serve/decode_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

int decode_new(struct decode **out, struct work *w, const struct decode_options *o, struct ds_err *err)
{
	struct decode *d = mem_calloc(1, sizeof(*d));

	if (d) {
		TAILQ_INIT(&d->jobs);
		TAILQ_INIT(&d->groups);
		d->w = w;
		d->o = *o;
		d->policy.always = o->always;
		d->meta = meta_new();
		d->stepping = mem_calloc(o->max_batch, sizeof(*d->stepping));
		d->turned = mem_calloc(o->max_batch, sizeof(*d->turned));
		d->prompts = mem_calloc(o->max_batch, sizeof(*d->prompts));
	}
	if (!d || !d->meta || !d->stepping || !d->turned || !d->prompts) {
		decode_free(d);
		return err_nomem(err, sizeof(*d), "decode");
	}
	*out = d;
	return 0;
}

void decode_report(const struct decode *d)
{
	char gain[100] = "its gain was not measured";
	double tokens, cost;

	if (!d->drafted)
		return;
	if (draft_summary(&d->policy, &tokens, &cost))
		snprintf(gain, sizeof(gain), "%.2f tokens a step that takes %.2f times one without: %.2f times as fast",
			tokens, cost, tokens / cost);
	log_msg(LOG_WARN, "mtp: %llu of %llu drafts accepted (%.1f %%), %s", (unsigned long long)d->accepted,
		(unsigned long long)d->drafted, 100.0 * (double)d->accepted / (double)d->drafted, gain);
}

/* ---- requests, from beginning to end ---- */

bool group_any(const struct decode *d, const struct source *src)
{
	const struct group *g;

	TAILQ_FOREACH(g, &d->groups, link)
		if (g->src == src)
			return true;
	return false;
}

struct group *group_find(struct decode *d, const struct source *src, uint64_t stream)
{
	struct group *g;

	TAILQ_FOREACH(g, &d->groups, link)
		if (g->src == src && g->stream == stream)
			return g;
	return NULL;
}

void job_end(struct decode *d, struct job *j)
{
	for (size_t i = 0; i < d->o.max_batch; i++)
		if (d->stepping[i] == j) {
			d->stepping[i] = NULL;
			d->prompts[i] = NULL;
		}
	TAILQ_REMOVE(&d->jobs, j, link);
	j->g->open--;
	prompt_end(&j->at);
	kv_seq_clear(&j->kv, d->w->pool);
	sample_history_free(j->history);
	stop_free(j->stop);
	kv_parked_free(&j->parked);
	free(j->h);
	free(j->made.ids);
	free(j);
}

static void group_free(struct decode *d, struct group *g)
{
	struct job *j = TAILQ_FIRST(&d->jobs), *next;

	profile_request_end(d->w->profile, g->stream, g->request.id);
	for (; j; j = next) {
		next = TAILQ_NEXT(j, link);
		if (j->g == g)
			job_end(d, j);
	}
	TAILQ_REMOVE(&d->groups, g, link);
	stop_free(g->stop);
	free(g->common);
	free(g->stem);
	free(g->decoded);
	if (d->pressed == g)
		d->pressed = NULL;
	free(g->first);
	free(g->ids);
	free(g);
}

void group_end(struct decode *d, struct group *g)
{
	struct source *src = g->src;

	group_free(d, g);
	source_release(src);
	if (--d->held < d->o.max_batch)
		held_resume(&d->paused);
	else if (!group_any(d, src))
		held_release(&d->paused, src); /* each may have one, however full it is */
	let_in(d);
}

void decode_free(struct decode *d)
{
	if (!d)
		return;
	while (!TAILQ_EMPTY(&d->groups)) /* the sources are gone */
		group_free(d, TAILQ_FIRST(&d->groups));
	held_free(&d->paused);
	held_free(&d->full);
	if (d->meta)
		meta_free(d->meta);
	free(d->stepping);
	free(d->turned);
	free(d->prompts);
	free(d);
}

int group_fail(struct decode *d, struct group *g, const struct ds_err *why)
{
	struct source *src = g->src;
	uint64_t stream = g->stream;
	char id[sizeof(g->request.id)];

	memcpy(id, g->request.id, sizeof(id));
	group_end(d, g);
	return stage_error(src, stream, id, why->code == DS_OS || why->code == DS_TEMP, why);
}

/* ---- the first tokens ---- */

/* What a choice needs from its first token on; prompt: what penalties look at before it, or NULL. */
static int equip(struct decode *d, struct job *j, const struct sample_history *prompt, const float *hidden,
	struct ds_err *err)
{
	struct group *g = j->g;
	size_t n = d->w->model->config.hidden;
	int rc = prompt ? sample_history_copy(&j->history, prompt, err) : 0;

	if (!rc && j->history)
		rc = sample_history_add(j->history, g->first[j->choice].id, err);
	if (!rc && g->stop)
		rc = stop_copy(&j->stop, g->stop, err);
	if (rc || !hidden || !d->o.drafts)
		return rc;
	j->h = mem_array(MTP_PENDING * n, sizeof(*j->h));
	if (!j->h)
		return err_nomem(err, MTP_PENDING * n * sizeof(*j->h), "hidden states");
	j->token = g->first[j->choice].id;
	draft_remember(d, j, hidden);
	return 0;
}

static int make_choices(struct decode *d, struct job *j, const float *hidden, struct job **all, struct ds_err *err)
{
	struct group *g = j->g;
	struct sample_history *prompt;
	int rc = work_history(&g->request, g->ids, g->prompt, &prompt, err);

	all[0] = j;
	for (size_t i = 0; i < g->request.n && !rc; i++) {
		if (i) {
			all[i] = fork_job(d, j, i);
			if (!all[i]) {
				rc = err_nomem(err, sizeof(*j), "a choice");
				break;
			}
			TAILQ_INSERT_AFTER(&d->jobs, all[i - 1], all[i], link);
			g->open++;
		}
		rc = equip(d, all[i], prompt, hidden, err);
	}
	sample_history_free(prompt);
	return rc;
}

void group_start(struct decode *d, struct job *j, const float *hidden)
{
	struct group *g = j->g;
	struct job *all[REQUEST_MAX_N];
	size_t n = g->request.n;
	struct ds_err why;

	j->state = JOB_READY;
	j->position = g->prompt;
	g->lead = NULL;
	if (d->pressed == g)
		d->pressed = NULL;
	g->began_ns = time_mono_ns();
	if (make_choices(d, j, hidden, all, &why)) {
		group_fail(d, g, &why);
		return;
	}
	prompt_end(&j->at);
	/* The request lasts until the last choice is finished, so until this loop is over if they all end with it. */
	for (size_t i = 0; i < n; i++) {
		struct sampled first = g->first[i];

		store_begin_made(d, all[i]);
		store_made(d, all[i], first.id);
		emit(d, all[i], &first);
	}
}
