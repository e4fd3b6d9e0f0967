/*
 * A store as a service: listening sockets, a thread for each client, readiness, drain, figures.
 */
#ifndef DS_SERVE_STORE_SERVICE_H
#define DS_SERVE_STORE_SERVICE_H

#include "store/server.h"

enum { STORE_SERVICE_DOORS = 16 };

struct store_service_options {
	const char *program;
	const char *const *listen; /* [listens] addresses for store frames; 0: frames on stdin, answers on stdout */
	size_t listens;
	const char *resp;          /* address for the Redis protocol, or NULL */
	const char *metrics;       /* address or file, or NULL */
	const char *store_name;    /* for figures: its address */
	bool anywhere;
	int64_t ready_fd, drain_ns, peer_ns;
	uint64_t max_frame, memory;
	int64_t max_clients;
};

/* Before the store is opened, which may take long: signals to end end the program at once, others do not.  Not for a
 * filter. */
void store_service_starting(void);
/* To the end of the input, or a signal.  Prints errors of single clients; err->text is empty where all was said. */
int store_service_run(struct store *s, const struct store_service_options *o, struct ds_err *err);

#endif
