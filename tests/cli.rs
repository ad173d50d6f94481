//! The program against a thread that plays the service with literal JSON.

#[path = "cli/claim.rs"]
mod claim;
#[path = "cli/failures.rs"]
mod failures;
#[path = "cli/fake.rs"]
mod fake;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/lists.rs"]
mod lists;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/screen.rs"]
mod screen;
#[path = "cli/waiting.rs"]
mod waiting;
