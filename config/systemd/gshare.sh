# Tells users at a terminal how to use this machine's GPUs. Installed by gshare; you may remove it.
case $- in
*i*)
    if [ -t 2 ] && [ -z "${GSHARE_CLAIM_ID-}" ] && [ -S /run/gshare/gshared.sock ]; then
        echo "GPUs here are shared: gshare shell" >&2
    fi
    ;;
esac
