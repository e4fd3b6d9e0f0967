/* What a store's service says of itself: Prometheus text, JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/outfile.h"
#include "base/time.h"
#include "serve/store_service_impl.h"
#include "serve/work.h"
#include "store/resp_front.h"

#define STAT_NS ((int64_t)2000000000) /* a store that does not answer does not hold who looks */

static bool read_stat(struct store_service *sv, struct store_stat *st)
{
	struct ds_err err;
	bool good;

	pthread_mutex_lock(&sv->figures);
	store_deadline(sv->ss, time_mono_ns() + STAT_NS);
	good = store_stat(sv->ss, st, &err) == 0;
	pthread_mutex_unlock(&sv->figures);
	return good;
}

static uint64_t counter_of(const struct store_stat *st, const struct store_counter *c)
{
	uint64_t v;

	memcpy(&v, (const uint8_t *)st + c->offset, sizeof v);
	return v;
}

/* ---- Prometheus ---- */

static void head(struct buf *b, const char *name, const char *help, bool gauge)
{
	buf_printf(b, "# HELP ds_kvstore_%s %s\n# TYPE ds_kvstore_%s %s\n", name, help, name,
		gauge ? "gauge" : "counter");
}

static void one(struct buf *b, const char *name, const char *help, bool gauge, uint64_t v)
{
	head(b, name, help, gauge);
	buf_printf(b, "ds_kvstore_%s %llu\n", name, (unsigned long long)v);
}

static void put_store(struct buf *b, const struct store_stat *st)
{
	char name[80];

	for (const struct store_counter *c = store_counters; c->name; c++) {
		snprintf(name, sizeof name, c->gauge ? "%s" : "%s_total", c->name);
		one(b, name, c->help, c->gauge, counter_of(st, c));
	}
}

static const char *op_label(int op)
{
	return op ? store_op_name((enum store_op)op) : "unknown";
}

static void put_requests(struct buf *b, struct store_server_counts *n)
{
	head(b, "requests_total", "requests by kind", false);
	for (int i = 0; i <= STORE_OP_MEMORY; i++)
		buf_printf(b, "ds_kvstore_requests_total{op=\"%s\"} %llu\n", op_label(i),
			(unsigned long long)n->op[i].requests);
	head(b, "request_errors_total", "requests that were refused or failed", false);
	for (int i = 0; i <= STORE_OP_MEMORY; i++)
		buf_printf(b, "ds_kvstore_request_errors_total{op=\"%s\"} %llu\n", op_label(i),
			(unsigned long long)n->op[i].errors);
	head(b, "request_seconds_total", "time in requests, answers sent included", false);
	for (int i = 0; i <= STORE_OP_MEMORY; i++)
		buf_printf(b, "ds_kvstore_request_seconds_total{op=\"%s\"} %.9g\n", op_label(i),
			(double)n->op[i].ns * 1e-9);
}

static void put_resp(struct buf *b, struct resp_front *front)
{
	struct resp_counts n;

	resp_front_counts(front, &n);
	one(b, "resp_connections_total", "connections of the Redis front", false, n.connections);
	one(b, "resp_clients", "clients of the Redis front now", true, n.clients);
	one(b, "resp_commands_total", "commands of the Redis front", false, n.commands);
	one(b, "resp_errors_total", "error replies of the Redis front", false, n.errors);
	one(b, "resp_collisions_total", "names whose key is another's", false, n.collisions);
}

void figures_metrics(struct store_service *sv, struct buf *b)
{
	struct store_server_counts *n = store_server_counts(sv->server);
	struct store_stat st;
	bool up = read_stat(sv, &st);

	one(b, "up", "the store behind the service answers", true, up);
	one(b, "ready", "new requests are taken", true, !sv->draining);
	one(b, "uptime_seconds", "since the service began", true, (uint64_t)(time_mono_ns() - sv->began) / 1000000000);
	if (up)
		put_store(b, &st);
	one(b, "clients", "clients of store frames now", true, n->clients);
	one(b, "connections_total", "clients of store frames so far", false, n->connections);
	one(b, "turned_away_total", "clients beyond --max-clients", false, sv->turned_away);
	one(b, "payload_memory_bytes", "taken by payloads in flight", true, store_server_memory(sv->server));
	one(b, "received_bytes_total", "payloads that came in frames", false, n->received_bytes);
	one(b, "sent_bytes_total", "payloads that went out in frames", false, n->sent_bytes);
	one(b, "passed_bytes_total", "payloads that clients read from files by descriptor", false, n->fd_bytes);
	put_requests(b, n);
	if (sv->front)
		put_resp(b, sv->front);
}

int figures_write(struct store_service *sv, struct ds_err *err)
{
	struct buf b = { 0 };
	struct outfile o;
	int rc;

	figures_metrics(sv, &b);
	rc = b.nomem ? err_nomem(err, b.len, "figures") : outfile_open(&o, sv->metrics_file, true, true, err);
	if (!rc) {
		size_t done = 0;

		while (done < b.len && !rc) {
			ssize_t n = write(o.fd, b.p + done, b.len - done);

			if (n < 0)
				rc = err_errno(err, DS_IO, "cannot write to '%s'", sv->metrics_file);
			else
				done += (size_t)n;
		}
		if (!rc)
			rc = outfile_commit(&o, err);
		outfile_discard(&o);
	}
	buf_free(&b);
	return rc;
}

/* ---- JSON ---- */

static void state_guests(struct store_service *sv, struct jw *w)
{
	static const char *const kinds[] = { "store", "resp", "http" };
	int64_t now = time_mono_ns();

	jw_key(w, "clients");
	jw_arr(w);
	pthread_mutex_lock(&sv->lock);
	for (struct guest *g = sv->here; g; g = g->next) {
		jw_obj(w);
		jw_put_str(w, "name", g->peer);
		jw_put_str(w, "kind", kinds[g->kind]);
		jw_put_real(w, "seconds", (double)(now - g->since) * 1e-9);
		jw_obj_end(w);
	}
	pthread_mutex_unlock(&sv->lock);
	jw_arr_end(w);
}

static void state_requests(struct store_server_counts *n, struct jw *w)
{
	jw_key(w, "requests");
	jw_obj(w);
	for (int i = 0; i <= STORE_OP_MEMORY; i++)
		jw_put_uint(w, op_label(i), n->op[i].requests);
	jw_obj_end(w);
}

void figures_state(struct store_service *sv)
{
	struct buf b = { 0 };
	struct store_stat st;
	struct jw w;

	jw_init(&w, &b);
	jw_obj(&w);
	jw_put_str(&w, "program", sv->o->program);
	jw_put_str(&w, "store", sv->o->store_name);
	jw_key(&w, "draining");
	jw_bool(&w, sv->draining);
	jw_put_uint(&w, "payload_memory_bytes", store_server_memory(sv->server));
	state_requests(store_server_counts(sv->server), &w);
	if (read_stat(sv, &st)) {
		jw_key(&w, "stat");
		jw_obj(&w);
		for (const struct store_counter *c = store_counters; c->name; c++)
			jw_put_uint(&w, c->name, counter_of(&st, c));
		jw_obj_end(&w);
	}
	state_guests(sv, &w);
	jw_obj_end(&w);
	work_print_state(&b);
	buf_free(&b);
}
